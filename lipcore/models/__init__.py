"""From a module of PyTorch or transformers to attention, and to the tokens that enter it.

>>> import torch, lipcore
>>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
>>> model = torch.nn.TransformerEncoder(layer, 2).eval()
>>> len(lipcore.measure(model, torch.randn(1, 3, 8)))
2
"""
