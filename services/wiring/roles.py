"""The roles of a deployment by name."""

from services.wiring.inference_node import run_inference_node
from services.wiring.state_node import run_state_node
from services.wiring.workers import run_compression_worker, run_trending

ROLES = {
    "state-node": run_state_node,
    "compression-worker": run_compression_worker,
    "inference-node": run_inference_node,
    "trending": run_trending,
}
