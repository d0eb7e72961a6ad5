"""Planning without an engine, a transport or a GPU: who would read what from whom, and is it right?

Run it with ``python examples/plan.py``. DeepSeek-V3 is prefilled on sixteen ranks and decoded on four.
"""

import kvweave as kw

model = kw.models.load("deepseek-v3")  # a preset, a config.json, or a folder with one
prefill = kw.EngineLayout.build(model, kw.ParallelConfig(tp=16), kw.CacheConfig(block_size=64, layout="HND"))
decode = kw.EngineLayout.build(model, kw.ParallelConfig(tp=4, dcp=4), kw.CacheConfig(block_size=128, layout="NHD"))

# Would this pair work at all? Every reason at once, each with both values and the remedy.
for problem in kw.check_compatibility(prefill, decode):
    print(problem)

# A plan is made once per pair of engines, and can be proved before anything is served.
plan = kw.plan_transfer(prefill, decode)
print(plan.verify())

# MLA's latent is on every prefill rank, so any of them may serve; the salt (one per request) spreads the load.
target = decode.rank(tp=1)
for salt in range(3):
    print(f"request {salt}: decode {target.coordinates} reads", *map(str, plan.sources(target, salt)["full"]))

# One request: 1,000 tokens, of which the decode side already holds the first 128. Rows are numpy arrays of addresses.
rows = plan.descriptors(
    target=target,
    source_blocks={"full": list(range(40, 56))},
    target_blocks={"full": [7, 3]},  # four ranks share the tokens, so two blocks of 128 hold 1,000 tokens
    start_token=128,
    num_tokens=1000,
    salt=1,
)
for source, row in rows.items():
    print(f"from {source}: {row.total_bytes:,} bytes in {len(row)} rows, the first of {row.nbytes[0]:,} bytes")

# The rank-level view, with vLLM's names.
topology = kw.TransferTopology(
    engine_id="decode", tp_rank=1, tp_size=4, block_size=128, total_num_kv_heads=128, is_mla=True
)
topology.register_remote_engine("prefill", kw.RemoteEngine(tp_size=16, block_size=64, block_bytes=64 * 576 * 2))
print(topology.describe("prefill"))
mapping = kw.compute_tp_mapping(topology, remote_tp_size=16, groups=model.groups)
print(f"as vLLM counts: rank 1 reads {mapping.all_source_ranks}")
