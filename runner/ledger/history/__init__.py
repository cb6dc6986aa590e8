"""What is kept over time: what runs used, how long nodes lived, their health, what verifications measured."""
