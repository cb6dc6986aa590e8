"""RunPod as data: the ids that its API has for GPUs (`gpus.csv`), and how prices are asked for."""
