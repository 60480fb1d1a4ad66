"""Some numbers of the BeaconKV paper, shown for comparison with the tables. This project measured none of them.

Kim, Kim, Shim and Choi, BeaconKV, arXiv 2609.04971, ICML 2026. Accuracy is mean pass@1 in percent, over 8 runs of
AIME24 and 4 of the others, at temperature 0.6 and with at most 32,768 new tokens, without intervals.
"""

from __future__ import annotations

SOURCE = "Kim et al., BeaconKV, arXiv 2609.04971"

TABLE1_SETTING = "Qwen3-4B, AIME24, budget 2048"
TABLE1 = {
    "beaconkv:32-0": 51.3,
    "beaconkv:31-1": 55.6,
    "beaconkv:16-16": 64.6,
    "beaconkv:4-28": 66.5,
    "beaconkv:1-31": 63.5,
}
"""Accuracy for each split of 32 observation queries, recent-beacon. The paper's row 32-0 is its RPC baseline."""

TABLE2_SETTING = "R1-Distill-Qwen-7B, AIME24"
TABLE2 = {4096: (55.4, 52.5), 2048: (46.7, 50.8), 1024: (39.2, 36.7), 512: (30.0, 27.5), 256: (23.3, 18.8)}
"""Budget -> accuracy with the maximum, with the mean, over queries and heads together."""

TABLE3_SETTING = "budget 1024"
TABLE3 = {
    ("Qwen3-14B", "AIME24"): (23.75, 57.92),
    ("Qwen3-14B", "GPQA-Diamond"): (60.23, 61.11),
    ("R1-Distill-Llama-8B", "AIME24"): (44.58, 45.00),
    ("Qwen3-4B", "MATH-500"): (55.95, 79.75),
}
"""(model, task) -> accuracy of the initial and recent queries, of BeaconKV."""

FIGURE8 = "largest gain over the compressed baselines: 31.7 points (Qwen3-14B, AIME24, budget 1024)"
TABLE6 = "means of its four models: about 13,500 to 14,700 tokens on AIME24, 11,700 to 14,100 on LiveCodeBench"
