"""First version of benchmarks/block_forms.py, as it was run for forms_chest.md: PACK PLAN [PLAN ...], plans as a,b,c.

SHARE=0 leaves training out. t3d: Tucker; dw: depthwise; a number behind @ is the width. Paths are those of that run.
"""
import sys, time, json, os
from pathlib import Path
from math import prod
import torch
from torch import nn
from dataclasses import replace
sys.path.insert(0, "benchmarks")
from shrink_plans import shrinking_of
from continual_segment.learning.least_squares import *
from continual_segment.learning.teach import Teacher, train_with_teacher
from continual_segment.networks.layers import *
from continual_segment.networks.blocks import *
from continual_segment.networks import Decoder, DecoderPlan

torch.set_num_threads(1)
KS = {"x": [(1,3,3),(3,1,1)], "3d": [(3,3,3)], "2d": [(1,3,3)], "p3d": [(1,3,3),(3,1,1)], "1": [(1,1,1)]}

class Low(nn.Module):
    """reduce (in T and skip) -> kernel(s) linear -> norm -> lrelu"""
    def __init__(self, skip, r, out, name, mid_norm=False):
        super().__init__()
        self.reduce = nn.Conv3d(skip, r, 1, bias=not False)
        ks = KS[name]
        self.mid = nn.Sequential(nn.InstanceNorm3d(r, affine=True), nn.LeakyReLU(0.01)) if mid_norm else nn.Identity()
        convs = []
        for i, k in enumerate(ks):
            last = i == len(ks) - 1
            convs.append(nn.Conv3d(r, out if last else r, k, padding=tuple(s // 2 for s in k), bias=last))
        self.lin = nn.Sequential(*convs)
        self.norm = FastInstanceNorm(out, affine=True)
        self.nonlin = nn.LeakyReLU(0.01, inplace=True)
    def forward(self, up, skip):
        return self.nonlin(self.norm(self.lin(self.mid(up + self.reduce(skip)))))

class Tuck(Low):
    def __init__(self, skip, r, out, name):
        super().__init__(skip, r, out, "1")
        ks = KS[name]
        self.lin = nn.Sequential(*[nn.Conv3d(r, r, k, padding=tuple(s // 2 for s in k), bias=False) for k in ks], nn.Conv3d(r, out, 1))

class Cross(Low):
    def __init__(self, skip, r, out):
        super().__init__(skip, r, out, "1")
        self.lin = nn.ModuleList([nn.Conv3d(r, out, (1,3,3), padding=(0,1,1)), nn.Conv3d(r, out, (3,1,1), padding=(1,0,0), bias=False)])
    def forward(self, up, skip):
        z = up + self.reduce(skip)
        return self.nonlin(self.norm(self.lin[0](z) + self.lin[1](z)))

class LowDW(nn.Module):
    def __init__(self, skip, r, out):
        super().__init__()
        self.reduce = nn.Conv3d(skip, r, 1)
        self.lin = nn.Sequential(nn.Conv3d(r, r, 3, padding=1, groups=r, bias=False), nn.Conv3d(r, out, 1))
        self.norm = FastInstanceNorm(out, affine=True)
        self.nonlin = nn.LeakyReLU(0.01, inplace=True)
    def forward(self, up, skip):
        return self.nonlin(self.norm(self.lin(up + self.reduce(skip))))

import continual_segment.training.muon as mu
_old = mu.hidden_convolutions
def _hidden(module):
    found = _old(module)
    for b in module.modules():
        if isinstance(b, (Low, LowDW)) and not os.environ.get("ADAM"):
            found += [c.weight for c in b.lin if c.groups == 1] + ([b.reduce.weight] if os.environ.get("MUONRED") else [])
    return found
mu.hidden_convolutions = _hidden

def parse(form):
    name, _, r = form.partition("@")
    return name, int(r) if r else None

def cost(plan, net, organs, V=1.0):
    """multiply-adds per fine voxel, and params"""
    feats = net.features[::-1]
    vox = [prod(prod(s) for s in [ (1,) ]) ]
    scale = 1.0; scales=[]
    for s in net.strides[1:]:
        scale /= prod(s); scales.append(scale)
    # block voxel counts deepest first
    sizes = [1.0]
    for s in net.strides[1:-1]: sizes.append(sizes[-1]/prod(s))
    sizes = sizes[::-1]
    m = p = 0
    for n, form in enumerate(plan):
        deep, f = feats[n], feats[n+1]
        name, r = parse(form)
        if name == "nnunet": w = 27*2*f*f; up = deep*f
        elif r is None: 
            ks=KS[{"projection":"1"}.get(name,name)]
            w = prod(ks[0])*2*f*f + sum(prod(k)*f*f for k in ks[1:]); up = deep*f
        elif name.startswith("t"):
            ks=KS[name[1:]]; w = f*r + sum(prod(k)*r*r for k in ks) + r*f; up = deep*r
        elif name == "x": w = f*r + 12*r*f; up = deep*r
        elif name == "dw": w = f*r + 27*r + r*f; up = deep*r
        else:
            ks=KS[name.removesuffix("n")]
            w = f*r + sum(prod(k)*r*(f if i==len(ks)-1 else r) for i,k in enumerate(ks)); up = deep*r
        p += w; m += (w+up)*sizes[n]
    return p, m + feats[-1]*(organs+1)

def fit(shr, plan):
    """build decoder for plan by closed form"""
    teacher, step = shr.tree.decoder, shr.step
    net = teacher.network
    dec = Decoder(net, teacher.plan, teacher.organs)
    dec.load_state_dict(teacher.state_dict())
    feats = net.features[::-1]
    strides = net.strides[:0:-1]
    for n, form in enumerate(plan):
        name, r = parse(form)
        if name == "nnunet": continue
        deep, f = feats[n], feats[n+1]
        conv = teacher.stages[n].convs[0]
        W = conv.conv.weight.data
        if r is None:
            kern = {"projection":"projection"}.get(name, name)
            from continual_segment.networks.decoder import conv_block
            from continual_segment.networks.block_form import BlockForm
            blk = conv_block(net, n, BlockForm(kern))
            for c in blk.convs: c.norm.load_state_dict(conv.norm.state_dict())
            for place, c in enumerate(blk.convs):
                eq = NormalEquations(tuple(c.conv.kernel_size))
                with torch.no_grad():
                    for features, draw in feature_batches(step, FitConfig()):
                        y = written_by_convolutions(teacher, n, features)[0]
                        vox = draw_voxels(y, 4000, draw)
                        x = features[-1]
                        for b in range(n): x = dec.stages[b](*dec.block_input(b, x, features))
                        x = torch.cat(dec.block_input(n, x, features), 1)
                        for cc in blk.convs[:place]: x = cc(x)
                        eq.add(x, y, vox)
                    w, b = eq.solve(1e-3); c.conv.weight.data.copy_(w); c.conv.bias.data.copy_(b)
            dec.stages[n] = blk
            continue
        midn = name.endswith("n"); base = name.removesuffix("n")
        tuck = name.startswith("t"); base = base[1:] if tuck else base
        blk = Cross(f, r, f) if name == "x" else Tuck(f, r, f, base) if tuck else LowDW(f, r, f) if name == "dw" else Low(f, r, f, base, midn)
        blk.norm.load_state_dict(conv.norm.state_dict())
        T = FastTransposedConv(deep, r, strides[n])
        # covariance of inputs
        with torch.no_grad():
            S = 0; cnt = 0; mean = 0
            for features, draw in feature_batches(step, FitConfig()):
                x = features[-1]
                for b in range(n): x = dec.stages[b](*dec.block_input(b, x, features))
                X = torch.cat(dec.block_input(n, x, features), 1).transpose(0,1).flatten(1)
                S = S + (X @ X.T).double(); mean = mean + X.sum(1).double(); cnt += X.shape[1]
            C = S/cnt - torch.outer(mean/cnt, mean/cnt)
            C = C + 1e-4*C.diagonal().mean()*torch.eye(len(C))
            e, Q = torch.linalg.eigh(C)
            root, inv = Q @ torch.diag(e.sqrt()) @ Q.T, Q @ torch.diag(e.rsqrt()) @ Q.T
            M = W.transpose(0,1).flatten(1).double()  # 2f x (out*27)
            A = root @ M
            U_, s_, _ = torch.linalg.svd(A, full_matrices=False)
            U = (inv @ U_[:, :r])  # z = U^T x, white
            Ut = U.T.float()
            t = teacher.transpconvs[n]
            T.weight.data.copy_(torch.einsum("ifzyx,rf->irzyx", t.weight.data, Ut[:, :f]))
            T.bias.data.copy_(Ut[:, :f] @ t.bias.data)
            blk.reduce.weight.data.copy_(Ut[:, f:, None, None, None]); 
            blk.reduce.bias.data.zero_()
            dec.transpconvs[n] = T
            dec.stages[n] = blk
            full = {"p3d": (3,3,3), "3d": (3,3,3), "2d": (1,3,3), "dw": (3,3,3), "1": (1,1,1), "x": (3,3,3)}[base]
            eq = NormalEquations(full)
            for features, draw in feature_batches(step, FitConfig()):
                y = written_by_convolutions(teacher, n, features)[0]
                vox = draw_voxels(y, 4000, draw)
                x = features[-1]
                for b in range(n): x = dec.stages[b](*dec.block_input(b, x, features))
                up, skip = dec.block_input(n, x, features)
                z = up + blk.reduce(skip)
                z = blk.mid(z) if midn else z
                eq.add(z, y, vox)
            if base == "x":
                idx = torch.tensor([c*27+k for c in range(r) for k in range(27) if k//9 == 1 or k%9 == 4] + [r*27])
                G, Mo = eq.gram[idx][:, idx], eq.moments[idx]
                sol = torch.linalg.solve(G + 1e-3*G.diagonal().mean()*torch.eye(len(G)), Mo).float()
                w = torch.zeros(r*27, Mo.shape[1]); w[idx[:-1]] = sol[:-1]; w = w.T.reshape(-1, r, 3,3,3); b = sol[-1]
                blk.lin[0].weight.data.copy_(w[:, :, 1:2]); blk.lin[0].bias.data.copy_(b)
                zk = w[:, :, :, 1:2, 1:2].clone(); zk[:, :, 1] = 0; blk.lin[1].weight.data.copy_(zk)
                continue
            w, b = eq.solve(1e-3)
            if tuck:
                out = w.shape[0]
                # weight by inverse norm std of outputs? targets are normed: weight channels by 1/std
                yv = y.transpose(0,1).flatten(1).std(1)
                Wm = (w.flatten(1) / yv[:, None])
                u, s, v = torch.linalg.svd(Wm, full_matrices=False)
                blk.lin[-1].weight.data.copy_((yv[:, None]*u[:, :r]*s[:r].sqrt())[..., None,None,None]); blk.lin[-1].bias.data.copy_(b)
                core = (s[:r].sqrt()[:, None]*v[:r]).reshape(r, *w.shape[1:])
                if base in ("3d", "2d"): blk.lin[0].weight.data.copy_(core)
                else:
                    V = core.permute(0,2,1,3,4).reshape(r*3, -1)
                    u, s, v = torch.linalg.svd(V, full_matrices=False)
                    q = s[:r].sqrt()
                    blk.lin[1].weight.data.copy_((u[:, :r]*q).reshape(r,3,r).permute(0,2,1)[..., None, None])
                    blk.lin[0].weight.data.copy_((q[:, None]*v[:r]).reshape(r, r, 1, 3, 3))
            elif base in ("3d", "2d", "1"):
                blk.lin[0].weight.data.copy_(w); blk.lin[0].bias.data.copy_(b)
            elif base == "p3d":
                out = w.shape[0]
                V = w.permute(0,2,1,3,4).reshape(out*3, -1)
                u, s, v = torch.linalg.svd(V, full_matrices=False)
                q = s[:r].sqrt()
                blk.lin[1].weight.data.copy_((u[:, :r]*q).reshape(out,3,r).permute(0,2,1)[..., None, None])
                blk.lin[0].weight.data.copy_((q[:, None]*v[:r]).reshape(r, r, 1, 3, 3))
                blk.lin[1].bias.data.copy_(b)
            elif base == "dw":
                out = w.shape[0]
                pw = torch.zeros(out, r); dwk = torch.zeros(r, 27)
                for c in range(r):
                    u, s, v = torch.linalg.svd(w[:, c].reshape(out, 27), full_matrices=False)
                    pw[:, c] = u[:, 0]*s[0].sqrt(); dwk[c] = v[0]*s[0].sqrt()
                blk.lin[0].weight.data.copy_(dwk.reshape(r,1,3,3,3)); blk.lin[1].weight.data.copy_(pw[..., None,None,None]); blk.lin[1].bias.data.copy_(b)
    return dec

def main():
    pack, *plans = sys.argv[1:]
    share = float(os.environ.get("SHARE", "0.8")); rate = float(os.environ.get("RATE", "0.5"))
    demo = Path("/work/runs/demo")
    prepared = next((demo/"prepared").glob(f"*{pack}*"))
    shr = shrinking_of(demo/"model", pack, prepared, "demo", Path("/tmp/shrink/runs")/pack)
    net = shr.tree.decoder.network; organs = shr.tree.decoder.organs
    P, M = cost(["nnunet"]*3, net, organs)
    print(pack, "organs", organs, "whole", shr.whole.dice, shr.ranking.dice_of(shr.tree.decoder, "ranktrained"), flush=True)
    for text in plans:
        plan = text.split(",")
        t0 = time.process_time()
        dec = fit(shr, plan)
        before = shr.judge.dice_of(dec, "b_"+text.replace(",", "-"))
        t1 = time.process_time()
        p, m = cost(plan, net, organs)
        tag = "s_"+text.replace(",", "-") + os.environ.get("TAG", "")
        after = float("nan")
        if share:
            sched = step_sched = shr.step.schedule(share, rate, seed=2)
            train_with_teacher(shr.step, dec, Teacher(shr.tree.decoder, 5.0), sched, tag)
            t2 = time.process_time()
            after = shr.judge.dice_of(dec, tag+"_after")
        else: t2 = t1
        line = f"{pack} {text} params {p/P:.3f} madds {m/M:.3f} before {before:.4f} after {after:.4f} lost {100*(shr.whole.dice-after):.2f} fit {t1-t0:.0f}s train {t2-t1:.0f}s share {share} rate {rate}"
        print(line, flush=True)
        open("/tmp/shrink/log.txt", "a").write(line+"\n")
main()
