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
    "capital": "The capital of Germany is",
    "fibonacci": "def fibonacci(n):\n    if n <= 1:\n        return n\n    return",
    "numpy": "import numpy as np\nimport matplotlib.pyplot as plt\n\nx = np.linspace(",
    "node": "class Node:\n    def __init__(self, value):\n        self.value = value\n        self.next =",
    "numbers": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "months": "January, February, March, April, May,",
    "c": "#include <stdio.h>\n\nint main() {\n    printf(",
    "loop": "for i in range(10):\n    print(i)\n\nfor i in range(20):\n    print(",
    "quiz": "Q: What is 2 + 2?\nA: 4\nQ: What is 3 + 5?\nA: 8\nQ: What is 4 + 1?\nA:",
    "genesis": "In the beginning God created the heaven and the earth. And the earth was",
    "preamble": "We the People of the United States, in Order to form a more perfect Union,",
    "gettysburg": "Four score and seven years ago our fathers brought forth",
    "hamlet": "To be, or not to be, that is the question:",
    "story": "Once upon a time, there was a little girl who lived in a",
    "list_html": "<ul>\n  <li>One</li>\n  <li>Two</li>\n  <li>Three</li>\n  <li>",
    "csv": "id,name,age\n1,Alice,30\n2,Bob,25\n3,",
    "yaml": "version: '3'\nservices:\n  web:\n    image:",
    "java": "public class Main {\n    public static void main(String[] args) {\n        System.out",
    "bash": "#!/bin/bash\n\nfor file in *.txt; do\n    echo",
    "same": "yes yes yes yes yes yes yes yes yes yes yes yes",
    "refrain": "Row, row, row your boat,\nGently down the stream.\nRow, row, row your boat,\nGently down the stream.\nRow,",
    "spanish": "uno, dos, tres, cuatro, cinco, seis,",
    "squares": "1 4 9 16 25 36 49 64 81 100 121",
    "makefile": "all: main\n\nmain: main.o\n\tgcc -o main main.o\n\nmain.o: main.c\n\tgcc -c main.c\n\nclean:\n\trm",
    "greeting": "Hello! My name is John and I am a",
    "countries": "France: Paris\nItaly: Rome\nSpain: Madrid\nGermany: Berlin\nJapan:",
    "plural": "cat -> cats\ndog -> dogs\nbird -> birds\nhouse ->",
    "opposites": "hot: cold\nup: down\nbig: small\nfast:",
    "sum_function": "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "class": "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n    def",
    "even": "2, 4, 6, 8, 10, 12, 14, 16, 18, 20,",
    "doubling": "1 2 4 8 16 32 64 128",
    "roman": "I, II, III, IV, V, VI, VII,",
    "import": "from collections import defaultdict\n\ndef group_by(items, key):\n    groups = defaultdict(list)\n    for item in items:",
    "assertions": "assert add(1, 2) == 3\nassert add(2, 2) == 4\nassert add(3, 2) == 5\nassert add(",
    "css": "body {\n    margin: 0;\n    padding: 0;\n    font-family:",
    "dates": "2024-01-01\n2024-01-02\n2024-01-03\n2024-01-04\n",
    "echo": "a b c a b c a b c a b c a b",
    "table": "| n | n*n |\n|---|-----|\n| 1 | 1 |\n| 2 | 4 |\n| 3 | 9 |\n|",
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
