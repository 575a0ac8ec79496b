"""What was trained, in use: embed, neighbours, finetune, classify, evaluate, export."""
