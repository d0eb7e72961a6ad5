"""A tiny random model that sees pictures (BLIP-2 in front of a Llama), and pictures to show it."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from pathlib import Path

from kvweave.engines.hf.tiny import VOCABULARY, byte_tokenizer
from tests.e2e.vllm.proxy import REQUEST_SECONDS, Answer

PICTURE_TOKEN = VOCABULARY - 4
NUM_PICTURE_TOKENS = 16
SIDE = 56
_WIDE = {"initializer_range": 0.25}
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def seeing_model(folder: Path) -> Path:
    """Saves the model to ``folder`` unless it is there; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from tokenizers import AddedToken
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, BlipImageProcessorPil

    text = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "vocab_size": VOCABULARY, "bos_token_id": VOCABULARY - 3, "eos_token_id": VOCABULARY - 2,
        "pad_token_id": VOCABULARY - 1, "max_position_embeddings": 2048, "tie_word_embeddings": False, **_WIDE,
    }  # fmt: skip
    tower = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, **_WIDE}
    config = Blip2Config(
        vision_config=tower | {"image_size": SIDE, "patch_size": 14}, text_config=text,
        qformer_config=tower | {"encoder_hidden_size": 64, "vocab_size": VOCABULARY},
        num_query_tokens=NUM_PICTURE_TOKENS, image_token_index=PICTURE_TOKEN, tie_word_embeddings=False, **_WIDE,
    )  # fmt: skip
    torch.manual_seed(5)
    network = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(network.query_tokens)
    network.save_pretrained(folder)
    tokenizer = byte_tokenizer()
    fillers = [AddedToken(f"<{number}>", special=True) for number in range(len(tokenizer), PICTURE_TOKEN)]
    tokenizer.add_special_tokens({"additional_special_tokens": [*fillers, AddedToken("<image>", special=True)]})
    tokenizer.chat_template = _TEMPLATE
    pictures = BlipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    Blip2Processor(pictures, tokenizer, num_query_tokens=NUM_PICTURE_TOKENS).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def picture(seed: int) -> str:
    """A picture of coloured noise as a data URL; all have the same size, and so the same tokens."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def show(url: str, data_url: str, max_tokens: int, **fields: object) -> Answer:
    """Shows a picture to a server and asks what it is; greedy."""
    content = [{"type": "image_url", "image_url": {"url": data_url}}, {"type": "text", "text": "What is this?"}]
    body = {
        "model": "model", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens,
        "temperature": 0.0, "ignore_eos": True, "return_token_ids": True,
    } | fields  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as reply:
        raw = json.loads(reply.read())
    choice = raw["choices"][0]
    return Answer(200, tuple(choice["token_ids"]), "", raw.get("kv_transfer_params"), "", raw)
