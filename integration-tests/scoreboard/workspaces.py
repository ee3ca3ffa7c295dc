#!/usr/bin/env python3
"""Writes the big sources that the profiles ask about, into workspaces/ beside this file. The same every time."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent / "workspaces"


def write(name, lines):
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def typescript():
    lines = ["export const shared = { value: 1 };"]
    for n in range(4000):
        lines.append(f"export function f{n}(value: {{ a{n}: number }}) {{ const shared = value.a{n} + {n}; return [shared].map((x) => x + shared); }}")
    lines.append("export   const  last=1")  # An edit, so that an answer differs from an empty one.
    write("typescript/big.ts", lines)
    write("typescript/small.ts", ["export const small = 1;"])
    write("typescript/tsconfig.json", ['{ "compilerOptions": { "strict": true, "target": "es2020" } }'])


def python():
    lines = ["import os", "", "value = 1", ""]
    for n in range(6000):
        lines += [f"def f{n}(value: int, other: str = 'x') -> list[int]:", f"    result = [value + {n} for value in range(value)]", "    return result", ""]
    write("python/big.py", lines)
    write("python/middle.py", lines[:3200])
    write("python/small.py", ["def small():", "    return 1"])
    # Formatted already, so that the answer is small.
    write("python-huge/huge.py", [f'x{n} = [{n}, "a" + "b", {{"k": {n}}}]' for n in range(90000)])
    write("python-huge/small.py", ["def small():", "    return 1"])


def web():
    write("json/big.json", ["["] + [f'{{"id": {n}}},' for n in range(30000)] + ["{}]"])
    write("json/small.json", ['{"a": 1}'])
    write("css/big.css", [f".c{n} .d{n % 7} > a:hover {{ color: #{n % 4096:03x}; margin: {n % 9}px; background: rgb({n % 255}, 0, 0); }}" for n in range(12000)])
    write("css/small.css", [".a { color: red; }"])
    write("html/big.html", ["<html><body>"] + [f'<div id="i{n}"><p class="c">text {n} <a href="#i{n}">x</a></p></div>' for n in range(12000)] + ["</body></html>"])
    write("html/small.html", ["<p>x</p>"])
    write("yaml/big.yaml", [f"key{n}:\n  inner: [1, 2, {{a: b}}]\n  text: word {n}" for n in range(700)])
    write("yaml/small.yaml", ["a: 1"])
    write("toml/big.toml", [f"[table.t{n}]\nkey={n}\narray=[1,2,  3]\ntext   = 'word'" for n in range(6000)])
    write("toml/small.toml", ["a = 1"])
    write("bash/big.sh", [f"f{n}() {{\n  local value=$1\n  echo \"$value\" | grep {n}\n}}\nvalue=$(f{n} {n})" for n in range(250)])
    write("bash/small.sh", ["echo x"])


def cpp():
    # A completion parses the file again up to its place, and evaluates the assertion.
    write(
        "cpp/slow.cpp",
        ["constexpr long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }"]
        + [f"static_assert(fib(23) + {n} > 0);" for n in range(4)]
        + ["struct S { int alpha; };", "int main() { S s; s.", "}"],
    )
    write("cpp/small.cpp", ["int small() { return 1; }"])
    write("cpp/compile_flags.txt", ["-std=c++17", "-fconstexpr-steps=100000000"])


def files():
    for folder in range(200):
        for n in range(100):
            write(f"files/d{folder}/f{n}.txt", ["x"])


def memory():
    write("memory/memory.jsonl", [f'{{"type":"entity","name":"e{n}","entityType":"t","observations":["o"]}}' for n in range(150000)])


def repository():
    path = ROOT / "repository"
    if (path / ".git").exists():
        return
    path.mkdir(parents=True)
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "-q", "-b", "main", path], check=True, env=env)
    commits = []
    for n in range(30000):
        text = f"change {n}\n"
        commits.append(f"commit refs/heads/main\ncommitter A <a@b.c> {1700000000 + n} +0000\ndata {len(text)}\n{text}M 644 inline file\ndata 2\n{n % 10}\n")
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input="\n".join(commits).encode(), check=True, env=env)


for make in (typescript, python, web, cpp, files, memory, repository):
    make()
(ROOT / "empty").mkdir(exist_ok=True)
