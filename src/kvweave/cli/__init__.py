"""The command line: typer commands and rich rendering; every answer is computed by the layers below."""
