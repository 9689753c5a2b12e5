"""Claims that no test and no benchmark shows: by capability, the sentence and what is missing.

Remove an entry when a test with the mark ``@claim`` shows its sentence.
"""

from __future__ import annotations

OPEN: dict[str, dict[str, str]] = {
    "installation": {
        "A fresh installation of the wheel shows first tokens within 60 s of the download": (
            "timed by hand (45 to 51 s); no test measures it"
        ),
        "A second `make demo` takes less than 15 s": ("timed by hand (11.8 and 13.6 s); no test measures it"),
        "The Dockerfile builds an image on the public base": (
            "built on a stand-in base without a network; not tried with the public one"
        ),
    },
    "checkpoints": {
        "Hub downloads work against the public hub": (
            "tested with a faked client, by hand against a server with the hub's protocol"
        ),
    },
    "numerics": {
        "The full comparison with transformers passes in one run": (
            "run in slices only, 37 % of its cells passed before it was stopped"
        ),
        "A worker serves on a card with `--device cuda`": (
            "written and tested over twins of a card's interfaces; not yet run on a card"
        ),
        "On a card, a row's bits are its own, for every tile and served in bfloat16, also after kill -9": (
            "not yet run on a card; each worker there proves its shapes, and `/version` says the result"
        ),
        "On a card, float32 tokens are those of transformers, and errors in bfloat16 at most 1.02 of its own": (
            "not yet run on a card; the kernels are compared with float64 by Triton's interpreter"
        ),
        "With `bits=fast` a card computes products by cuBLAS": "shown on the mirror, where torch's products stand for it",
        "Kernels of a model are compiled within 60 s at its first start on a card": (
            "not yet run on a card; compiling them for an H100 takes 8 s of one core"
        ),
        "NVML's readings of a card agree with the account of memory": "not yet run on a card",
    },
    "fine-tunes": {
        "Eight LoRA adapters of rank 16 on all products cost at most 12 % of a sweep": (
            "16 % on the small model in float32, 29 and 19 % in bfloat16; fewer products stay within it"
        ),
    },
    "faults": {
        "After SIGSTOP of the head `/admin` serves again in half the time of a cold start": (
            "1.2 times that time, since `silence` (2 s) passes first; 0.17 times after kill -9"
        ),
        "A kernel that faults on a card ends its worker, which starts again": (
            "shown on the mirror, with errors planted at each kind of call; no kernel has faulted on a card"
        ),
        "Kill -9 of either of two workers on one card, fifty times, loses no request": (
            "shown over a twin of a card; not yet run on one"
        ),
    },
    "http-api": {
        "Loading a tokenizer with a large vocabulary leaves the event loop free": ("its library keeps the interpreter lock"),
        "The load tools guidellm and `vllm bench serve` work unmodified": ("run once by hand; the reports are stored"),
    },
    "actor-runtime": {
        "Two worker processes exchange tensors over CUDA IPC on one card": (
            "shown over a twin of a card, and the calls of CUDA by a recorded CuPy; no card was at hand"
        ),
        "Tensors between two cards travel by NCCL": (
            "built, and shown over a communicator that checks order and posted receives; two cards were never at hand"
        ),
        "Shared memory is pinned for a card": "shown over a twin of a card, and the calls of CUDA by a recorded CuPy",
        "A call between processes takes at most 1.8 times as long as with blocking pyzmq": (
            "2.4 times where processors sleep between calls"
        ),
    },
    "prediction": {
        "A forecast takes less than 5 ms on a processor without AVX-512": ("5.7 and 6.2 ms on an AMD EPYC in a busy host"),
        "P99 of first tokens near capacity is 75 % below Llumnix- with known lengths": (
            "41 % (three seeds); memory sets the limit, and a pooled instance reaches 55 to 67 %"
        ),
        "P99 of first tokens near capacity is 25 % below Llumnix- with estimated lengths": ("18 %"),
        "Capacity at batch 24 is 10 % above Llumnix- under both limits of latency": ("17 % below 3 s, but 9 % below 10 s"),
        "Kill -9 of a worker that drains for autoscaling loses no request of real processes": ("tested in one process only"),
    },
    "simulator": {
        "The simulator orders all pairs of dispatch policies as a live cluster does": (
            "10 of 11 pairs; the wrong one lies 0.7 % apart"
        ),
        "A replay of event logs is within 15 % of the live run for every policy": (
            "random dispatch misses it: 27 % of the first token, 16 % of latency"
        ),
        "The simulator reaches its speed on a processor without AVX-512 in a busy host": (
            "twelve instances 46 to 75 times real time (bar 100), 1,000 instances 0.5 to 0.6 times (bar 1)"
        ),
    },
    "parameter-dropping": {
        "Lookahead cuts the idle time of pipelines by a fifth in every case": (
            "0.84 instead of 0.8 times with two stages in 16 GB"
        ),
        "P99 of first tokens in a simulated burst is 12 times below every baseline, also with long prompts": (
            "arXiv 10 to 11 times; pipelines all the time 1.8 to 7.3 times"
        ),
        "Pipelines of four stages take at most 1.25 times the time per token of replicas": ("1.5 times; two stages meet it"),
    },
    "offline": {
        "Ordering a large batch holds the event loop for at most 50 ms on a processor without AVX-512": (
            "79 ms on an AMD EPYC in a busy host"
        ),
        "Offline load fills 80 % of the rest where each token takes its own time, beside the bound on online latency": (
            "the two bounds exclude each other there; offline requests get idle time"
        ),
        "50,000 requests in 200 MiB are answered in one batch": ("tried by hand; the tests use small limits"),
    },
    "speed": {
        "Planning a sweep of 48 sequences takes less than 80 us on any processor": (
            "109 us on a slower AMD EPYC in a busy host"
        ),
        "Two threads are never slower than one beside a busy process": ("0.75 times at 32 requests of the larger model"),
        "Twenty fine-tunes have at most 0.75 times the P95 of engines with merged weights": (
            "0.68 times with Poisson arrivals, but 0.751 with the Azure trace"
        ),
        "Serving 32 requests of the larger model in bfloat16 is 3 times as fast as transformers": (
            "2.2 to 2.6 with AMX, which both use; 3.4 on an AMD EPYC"
        ),
        "Beside a process that is busy all the time, 60 % of the tokens remain at 32 requests": (
            "59 % on the stored machine, 64 and 67 % on another"
        ),
        "A fork of a scheduler whose memory is full of cached pages takes less than 1 ms": (
            "2.0 ms in the stored result; measured by hand at 0.33 ms since"
        ),
        "Twenty fine-tunes have 1.5 times the tokens of engines with merged weights": (
            "1.21 and 1.05 times; sharing and merging make the same sweeps"
        ),
        "Products of 128 rows are at least 0.95 times as fast as torch on every instruction set": (
            "no result is stored; AVX-512 without tiles is not measured"
        ),
        "Models of one and three billion parameters have stored figures": ("the benchmark exists; no result is stored"),
        "Decode, prefill, moves of memory and two workers on a CUDA card reach the bars of the card's benchmark": (
            "the benchmark exists and runs whole on a mirror; no card has run it yet"
        ),
        "A streamed token takes at most 0.75 of a gateway's processor time before servers spread over machines": (
            "0.91 times with one gateway, 0.89 with four under 128 streams"
        ),
        "With four gateways a streamed token takes at most 1.1 times the processor time that it takes with one": (
            "1.99 times under 32 streams, 1.24 under 128: fewer tokens share an event"
        ),
        "All stored figures are of the released commit": (
            "the long benchmarks are of earlier commits, which their sections name"
        ),
    },
    "code-and-tests": {
        "All tests run in less than 10 minutes on two cores": (
            "9 to 21 minutes beside the types, depending on the processor"
        ),
        "`make mutants` takes less than 30 minutes on two cores": ("not measured"),
        "Code outside tests grew by at most 5 % in the rebuild of the scheduler": (
            "15 % more, for reasons that a decision gives"
        ),
    },
}
