"""How a run's state looks: HTML, charts and phrases."""
