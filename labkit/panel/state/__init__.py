"""What a panel knows: events in, the state of the run out."""
