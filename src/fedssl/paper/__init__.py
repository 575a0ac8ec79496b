"""The paper's tables and figures: what each cell is (TOML), at which scale it is run, and what came out beside it."""
