"""How well a bounded cache serves: measured against the full cache, and against answers."""
