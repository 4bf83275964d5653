"""Speed and memory, measured side by side in one run; ratios travel between machines, times do not."""
