"""placeholder"""
def shard(model, mesh=None, mixed_precision="no"): raise NotImplementedError
def shard_by_accelerate(a, m): raise NotImplementedError
def is_sharded(m): return False
def whole(tree, keep=True):
    if hasattr(tree, "detach"): return tree.detach().cpu().clone()
    if isinstance(tree, dict): return {k: whole(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)): return type(tree)(whole(v) for v in tree)
    return tree
def whole_optimizer_state(o, keep=True): return whole(o.state_dict())
def load_whole_model(m, s, broadcast_from_main=False): m.load_state_dict(s)
def load_whole_optimizer(o, s, broadcast_from_main=False): o.load_state_dict(s)
def like(t, p): return t
def gradient_norm_clip(p, l):
    import torch
    return torch.nn.utils.clip_grad_norm_(p, l)
def scale(g, f):
    import torch
    torch._foreach_mul_(g, f)
def all_finite(params, group=None):
    import torch
    return all(torch.isfinite(n).item() for n in torch._foreach_norm([q.detach() for q in params]))
