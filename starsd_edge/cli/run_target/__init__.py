"""`starsd-edge run-target`: answer prompts, or chat, with a target model."""
