"""What authors write and what they meet: worlds, agents, views and writes."""
