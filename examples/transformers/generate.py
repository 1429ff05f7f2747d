"""transformers batches continuously over Blockwright: ``python examples/transformers/generate.py MODEL [PROMPT ...]``.

Each prompt is answered, and prompts share what they begin with, whichever layers the model has. MODEL is what
`from_pretrained` takes.
"""

import sys
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from blockwright.engines.transformers import register

PROMPTS = [f"You are a helpful assistant. Answer in one word. {each}" for each in ("Is water wet?", "Is ice wet?")]


def main(name: str, *prompts: str) -> None:
    """Answer each prompt in one batch."""
    tokenizer: Any = AutoTokenizer.from_pretrained(name)
    model: Any = AutoModelForCausalLM.from_pretrained(name)
    register()  # from here on every batch that starts uses Blockwright's manager
    given = [tokenizer(prompt)["input_ids"] for prompt in prompts or PROMPTS]
    answers = model.generate_batch(given, GenerationConfig(max_new_tokens=32, do_sample=False))
    for answer in answers.values():
        print(tokenizer.decode(answer.generated_tokens))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python examples/transformers/generate.py MODEL [PROMPT ...]")
    main(*sys.argv[1:])
