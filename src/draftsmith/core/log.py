"""One logger for the package. Under torchrun only rank 0 speaks below a warning, and other ranks sign what they say."""

import logging
import os

from rich.console import Console
from rich.logging import RichHandler

log = logging.getLogger("draftsmith")
console = Console(stderr=True)


def rank() -> int:
    """This process's place in a torchrun or Slurm job; 0 when there is no such job."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def setup_logging(verbose: bool = False) -> None:
    """Send the package's log to standard error; called by the command line, never by the library."""
    level = logging.DEBUG if verbose else logging.INFO
    log.setLevel(level if rank() == 0 else max(level, logging.WARNING))
    handler = RichHandler(console=console, show_path=False, show_time=verbose, markup=False)
    prefix = "" if rank() == 0 else f"[rank {rank()}] "
    handler.setFormatter(logging.Formatter(f"{prefix}%(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
