"""The machine that goes with every measured number."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import torch

from rnncc.stages.build.nvrtc import find_library, known
from rnncc.version import VERSION


def machine() -> dict[str, Any]:
    """Processor, threads, versions, and the GPU if there is one."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    found = {
        "processor": model,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "rnncc": VERSION,
        "python": platform.python_version(),
    }
    return found | gpu_machine() if torch.cuda.is_available() else found


def gpu_machine() -> dict[str, Any]:
    """The GPU, its driver, and what comes from NVIDIA besides."""
    about = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\s(\d+\.[\d.]+)\s", about.read_text()) if about.is_file() else None
    nvrtc = find_library()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver[1] if driver else "unknown",
        "cuda": torch.version.cuda,
        "nvrtc": known(nvrtc)[0] if nvrtc else "none",
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
