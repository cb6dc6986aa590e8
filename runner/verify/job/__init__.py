"""What a verification runs on the nodes: the standard library and PyTorch alone, nothing else of orch.

By hand, with these files in one folder: `torchrun --nproc-per-node=1 verify_program.py`.
"""
