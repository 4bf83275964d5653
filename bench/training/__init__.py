"""What a training step costs, stage by stage, and how much memory it takes, at long histories."""
