"""The fault deck: break a running training on purpose, and read what that cost."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    deck=(
        *("kill_rank", "freeze_rank", "slow_rank", "kill_node", "freeze_node", "drain_node"),
        *("kill_controller", "kill_kernel", "freeze_store", "fill_disk", "damage_checkpoint"),
    ),
    fault=("Fault",),
)
