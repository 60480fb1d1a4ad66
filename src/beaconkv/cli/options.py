"""Help of options that several commands have."""

POLICIES = "Methods, separated by commas."
BUDGETS = "B_max, number of entries per layer and KV head; several separated by commas."
BUDGET = "B_max, number of entries per layer and KV head."
PREFIX = 'Number of first entries never evicted, or "prompt".'
PROTECT = 'Number of last entries never evicted, or "half" of what stays.'
BUDGET_MIN = "Number of entries left after an eviction. Default: 7/8 of the budget."
SCOPE = "total: the prompt counts in the budget (default); output: it is kept in addition."
TEMPERATURE = "Temperature of the sampling; 0: the likeliest token each time."
TOP_P = "Probability mass of the nucleus that is sampled from."
SETTING = "Policy setting, as setting=value; repeatable."
JSON = "Print JSON instead of a table."
