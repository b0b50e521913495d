"""What limits sending: concurrency, rate limits, circuit breakers, and the choice of a provider."""
