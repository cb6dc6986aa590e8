"""Local nodes of simulated instances: containers, their user data and disks, pods, and notices of clouds."""
