#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kernel keeps its values in registers: ptxas reports neither spills nor a stack frame, for three generations of GPUs.

Needs nvcc but no GPU. Each .cu file is compiled as the build compiles it (compile_commands.json), but for one GPU at a time.

Usage: register_spill_test.py COMPILE_COMMANDS
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # A100, H100 and H200, B200
# Kernels that may use local memory, and why that does not matter. So far there are none.
ALLOWED: dict[str, str] = {}

KERNEL_THAT_SPILLS = """
__global__ void reverse_kernel(float* values, int count) {
    float own[32];
    for (int i = 0; i < count; ++i) own[i] = values[i];
    for (int i = 0; i < count; ++i) values[i] = own[count - 1 - i];
}
"""

compile_commands = Path()


def build_commands() -> dict[Path, list[str]]:
    """By source file: how the build compiles it, without what it compiles for and where to."""
    commands = {}
    for entry in json.loads(compile_commands.read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        nvcc = next(number for number, word in enumerate(words) if Path(word).name == "nvcc")  # after a ccache, if any
        kept = []
        skip = False
        for word in words[nvcc:]:
            if not skip and word not in ("-o", "-c", "-MF", "-MT", "-MD", entry["file"]):
                if not word.startswith(("--generate-code", "-gencode", "-arch")):
                    kept.append(word)
            skip = word in ("-o", "-MF", "-MT")
        commands[Path(entry["file"])] = kept
    return commands


def report_of_ptxas(command: list[str], source: Path, architecture: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        device_code = [f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", f"{folder}/out.cubin"]
        done = subprocess.run([*command, *device_code, source], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{source} does not compile for {architecture}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def local_memory(report: str) -> dict[str, list[int]]:
    """By the kernel's name in the object file: bytes of stack frame, spill stores and spill loads."""
    line = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    found = re.findall(rf"Function properties for (\S+)\s+{line}", report)
    return {name: [int(number) for number in numbers] for name, *numbers in found}


class RegisterSpillTest(unittest.TestCase):
    def test_no_kernel_uses_local_memory(self):
        for source, command in build_commands().items():
            names = re.findall(r"__global__\s+\w+\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", source.read_text())
            self.assertTrue(names, f"no kernel in {source}")
            for architecture in ARCHITECTURES:
                kernels = local_memory(report_of_ptxas(command, source, architecture))
                for name in names:
                    with self.subTest(kernel=name, architecture=architecture):
                        compiled = [numbers for symbol, numbers in kernels.items() if f"{len(name)}{name}" in symbol]
                        self.assertTrue(compiled, f"ptxas said nothing of it, but of {list(kernels)}")
                        if name not in ALLOWED:
                            for numbers in compiled:
                                self.assertEqual(numbers, [0, 0, 0], "bytes of stack frame, spill stores, spill loads")

    def test_local_memory_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "reverse.cu"
            source.write_text(KERNEL_THAT_SPILLS)
            command = next(iter(build_commands().values()))
            for architecture in ARCHITECTURES:
                ((stack_frame, *_),) = local_memory(report_of_ptxas(command, source, architecture)).values()
                self.assertEqual(stack_frame, 128, architecture)


if __name__ == "__main__":
    compile_commands = Path(sys.argv.pop(1))
    if not build_commands():
        print("SKIPPED: this build compiles no CUDA (HOLDFAST_WITH_CUDA=OFF)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
