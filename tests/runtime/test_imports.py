import subprocess
import sys


def test_the_runtime_imports_nothing_heavy():
    code = (
        "import sys, blockwright.runtime, blockwright.runtime.cluster, blockwright.runtime.processes;"
        "print([m for m in ('torch', 'aiohttp', 'numpy', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
