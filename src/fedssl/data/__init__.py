"""What a client trains on: images, how they are dealt out to clients, and the two augmented views of each."""
