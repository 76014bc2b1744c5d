"""Writes llama_cpp/<model>.json: what llama.cpp makes of real models.

    python make_llama_cpp.py MODEL.gguf... [--perplexity BINARY --text FILE --chunks N]

Needs the llama_cpp package. Greedy continuations of raw prompts (no chat template, no penalties,
BOS as the model's metadata says), each with the gap between its two best logits: where that is
small, another order of summation may choose differently. With --perplexity also the per-chunk
values of llama-perplexity over a text.

llama.cpp does not always agree with itself: reading the prompt token by token or at once, with or
without flash attention, changes rounding and so, at near ties, the text. `stable` counts the leading
tokens on which all four of its own ways agree; beyond it there is no one text to agree with.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

import llama_cpp
import numpy as np

NEW_TOKENS = 64
CTX = 512
PROMPTS = {
    "prose": "The capital of France is",
    "code": "def quicksort(items):\n    \"\"\"Return the items in ascending order.\"\"\"\n",
    "list": "Three things to pack for a week in the mountains:\n1.",
    "question": "Question: Why does the moon always show the same face to us?\nAnswer: Because",
    "maths": "If 3x + 7 = 22, then x =",
    "german": "Am Morgen ging der alte Fischer zum Hafen, weil",
    "dialogue": "Anna: Did you hear that noise?\nBen: It came from the cellar.\nAnna:",
    "long": (
        "The lighthouse had stood on the northern cliff for more than two hundred years. Its keeper, "
        "a quiet woman named Ingrid, climbed the spiral stairs every evening to light the great lamp, "
        "and every morning she climbed them again to put it out. Ships from many countries passed below "
        "on their way to the harbour, and their captains knew the slow, steady turning of the light as "
        "well as they knew the faces of their own children. One winter a storm came that was stronger "
        "than any the village could remember. The waves broke the sea wall, the power failed, and the "
        "roads were closed by snow. For three nights Ingrid kept the lamp burning with oil from the old "
        "store beneath the tower. On the fourth morning, when the wind had finally dropped, she looked "
        "out over the water and saw"
    ),
    "json": '{"name": "Ada Lovelace", "born": 1815, "occupation":',
    "poem": "The woods are full of quiet sound,\nThe leaves are falling to the ground,\n",
    "python": "import os\n\ndef count_lines(path):\n    with open(path) as f:\n        return",
    "rust": "fn main() {\n    let numbers = vec![1, 2, 3, 4, 5];\n    let sum: i32 =",
    "sql": "-- All customers who ordered in 2023\nSELECT name FROM customers WHERE",
    "counting": "one, two, three, four, five, six, seven,",
    "alphabet": "A B C D E F G H I J",
    "days": "Monday, Tuesday, Wednesday,",
    "french": "Bonjour, je m'appelle Marie et j'habite à Paris. J'aime",
    "recipe": "Ingredients for pancakes:\n- 2 cups of flour\n- 2 eggs\n-",
    "letter": "Dear Sir or Madam,\n\nI am writing to",
    "html": "<!DOCTYPE html>\n<html>\n<head>\n<title>",
    "arithmetic": "2 + 2 = 4\n3 + 3 = 6\n4 + 4 = 8\n5 + 5 =",
    "fact": "Water boils at a temperature of",
    "history": "The first president of the United States was",
    "definition": "Photosynthesis is the process by which",
    "repeat": "the cat sat on the mat. the cat sat on the mat. the cat",
}


def greedy(model: llama_cpp.Llama, kind: str, prompt: str) -> dict:
    prompt_ids = model.tokenize(prompt.encode(), add_bos=True, special=False)
    model.reset()
    ids, margins, fed = [], [], prompt_ids
    while len(ids) < NEW_TOKENS and (not ids or ids[-1] != model.token_eos()):
        model.eval(fed)
        row = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        logits = np.ctypeslib.as_array(row, shape=(model.n_vocab(),))
        best = int(logits.argmax())
        margins.append(round(float(logits[best] - np.partition(logits, -2)[-2]), 4))
        ids.append(best)
        fed = [best]
    return {
        "kind": kind,
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "ids": ids,
        "text": model.detokenize(ids).decode(errors="replace"),
        "top2_margins": margins,
    }


def ways(path: Path, threads: int):
    """llama.cpp's own ways of computing the same: (model, feed the prompt token by token)."""
    for flash_attn in (True, False):
        model = llama_cpp.Llama(
            str(path),
            n_ctx=CTX,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=flash_attn,
            verbose=False,
        )
        yield model, True
        yield model, False


def follow(model: llama_cpp.Llama, prompt_ids: list[int], n: int, one_by_one: bool) -> list[int]:
    """Greedy ids without margins."""
    model.reset()
    if one_by_one:
        for token in prompt_ids[:-1]:
            model.eval([token])
    fed, ids = (prompt_ids[-1:] if one_by_one else prompt_ids), []
    while len(ids) < n:
        model.eval(fed)
        row = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        fed = [int(np.ctypeslib.as_array(row, shape=(model.n_vocab(),)).argmax())]
        ids += fed
    return ids


def add_stable(path: Path, prompts: list[dict], threads: int) -> None:
    for prompt in prompts:
        prompt["stable"] = len(prompt["ids"])
    for model, one_by_one in ways(path, threads):
        for prompt in prompts:
            ids = follow(model, prompt["prompt_ids"], prompt["stable"], one_by_one)
            same = [a == b for a, b in zip(ids, prompt["ids"])] + [False]
            prompt["stable"] = min(prompt["stable"], same.index(False))


def perplexity(binary: str, model: Path, text: Path, chunks: int, threads: int) -> dict:
    command = [binary, "-m", model, "-f", text, "-c", CTX, "--chunks", chunks, "-t", threads]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    output = run.stdout + run.stderr
    final = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", output)
    running = {int(i): float(v) for i, v in re.findall(r"\[(\d+)\]([\d.]+),", output)}
    return {
        "text": text.name,
        "ctx": CTX,
        "chunks": len(running),
        "ppl": float(final[1]),
        "stderr": float(final[2]),
        "running_ppl": [running[i] for i in sorted(running)],  # over chunks 1..=i
    }


def one_line_per_item(result: dict) -> str:
    """JSON with a line per top-level key and per prompt, so that a change shows as one."""

    def compact(value) -> str:
        return json.dumps(value, ensure_ascii=False)

    def field(value) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join("    " + compact(item) for item in value) + "\n  ]"
        return compact(value)

    lines = [f"  {compact(key)}: {field(value)}" for key, value in result.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--perplexity", help="llama-perplexity")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for path in args.models:
        out = Path(__file__).parent / "llama_cpp" / f"{path.stem}.json"
        out.parent.mkdir(exist_ok=True)
        known = json.loads(out.read_text()) if out.exists() else {}
        if args.perplexity:
            scores = perplexity(args.perplexity, path, args.text, args.chunks, args.threads)
            result = known | {"perplexity": scores}
        else:
            model = llama_cpp.Llama(
                str(path), n_ctx=CTX, n_threads=args.threads, n_threads_batch=args.threads, verbose=False
            )
            prompts = [greedy(model, kind, prompt) for kind, prompt in PROMPTS.items()]
            add_stable(path, prompts, args.threads)
            result = known | {
                "source": f"llama.cpp by llama-cpp-python {llama_cpp.__version__}, CPU",
                "model": path.name,
                "prompts": prompts,
            }
        out.write_text(one_line_per_item(result))


if __name__ == "__main__":
    main()
