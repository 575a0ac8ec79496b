"""What a run leaves behind for people: its folder, its progress on the screen, its warnings."""
