import subprocess
import sys

from blockwright.policies.compiled import LIBRARY
from blockwright.tests.claims import claim


@claim("The runtime imports neither torch nor aiohttp", of="actor-runtime")
def test_the_runtime_imports_nothing_heavy():
    code = (
        "import sys, blockwright.runtime, blockwright.runtime.cluster.cluster, blockwright.runtime.cluster.processes;"
        "print([m for m in ('torch', 'aiohttp', 'numpy', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_the_runtime_loads_few_modules():
    """What the import takes is what it loads; ``benchmarks/nodes.py`` has the milliseconds."""
    code = "import sys; before = set(sys.modules); import blockwright.runtime; print(*sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = out.stdout.split()
    packages = {name.partition(".")[0] for name in loaded if "cython" not in name}
    # Shared memory takes ``RangeAllocator`` of the policies, which may be compiled.
    assert packages - sys.stdlib_module_names - {LIBRARY} == {"blockwright", "msgpack", "zmq"}
    assert len(loaded) < 260, "each module costs about half a millisecond; import the new ones where they are used"
    assert {name.split(".")[1] for name in loaded if name.startswith("blockwright.")} == {"policies", "runtime", "transport"}
