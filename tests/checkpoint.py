#!/usr/bin/env python3
"""Python's safetensors package reads what examples/checkpoint writes, and it reads what the package writes: tests/checkpoint.py BUILD. Where the packages safetensors and
numpy are not installed it says so, and passes."""
import json, os, shutil, subprocess, sys, tempfile

try:
    import numpy, safetensors.numpy, safetensors
except ImportError as missing:
    print(f"skip: {missing}; pip install safetensors numpy")
    sys.exit(0)

build = os.path.abspath(sys.argv[1])
folder = tempfile.mkdtemp(prefix="mesh-checkpoint-")


def run(ranks, *args):
    made = subprocess.run([f"{build}/mesh", "run", "-n", str(ranks), "--", f"{build}/checkpoint", *args], capture_output=True, text=True)
    return made.returncode, made.stdout, made.stderr


def read():
    """All tensors, by way of the index, as any program of Hugging Face's reads them."""
    index = json.load(open(f"{folder}/model.safetensors.index.json"))
    files = {file: safetensors.numpy.load_file(f"{folder}/{file}") for file in set(index["weight_map"].values())}
    for file in files:
        with safetensors.safe_open(f"{folder}/{file}", "np") as f: assert f.metadata() == {"format": "pt"}, f.metadata()
    tensors = {name: files[file][name] for name, file in index["weight_map"].items()}
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    return index, tensors


try:
    weight, moment, scale = numpy.zeros((8, 6), "f4"), numpy.zeros((8, 6), "f4"), numpy.zeros((), "f8")
    for turn, ranks in enumerate((4, 3, 1)):  # ours, read by theirs
        code, out, err = run(ranks, folder)
        assert code == 0 and f"step {2 * turn + 2} is saved" in out, (code, out, err)
        for _ in range(2): moment, scale = 0.5 * moment + 1, scale + 1; weight = weight + moment
        index, tensors = read()
        assert index["metadata"]["step"] == str(2 * turn + 2)
        for name, want in ("weight", weight), ("moment", moment), ("scale", scale):
            assert tensors[name].dtype == want.dtype and tensors[name].shape == want.shape and (tensors[name] == want).all(), name
    shutil.rmtree(folder)
    os.mkdir(folder)
    weight = numpy.arange(48, dtype="f4").reshape(8, 6)
    state = {"weight": weight, "moment": weight * 2, "scale": numpy.array(7.0), "other \u20ac \"quoted\"": numpy.zeros((3, 0), "i2")}
    want = f"|weight| = {numpy.linalg.norm(weight):g} |moment| = {2 * numpy.linalg.norm(weight):g} |scale| = 7"
    safetensors.numpy.save_file(state, f"{folder}/model.safetensors", metadata={"step": "9"})  # theirs, read by ours: one file
    code, out, err = run(3, "--show", folder)
    assert code == 0 and f"loaded: {want}" in out, (code, out, err)
    os.remove(f"{folder}/model.safetensors")  # and two, with an index
    safetensors.numpy.save_file({"weight": weight}, f"{folder}/model-00001-of-00002.safetensors")
    safetensors.numpy.save_file({k: v for k, v in state.items() if k != "weight"}, f"{folder}/model-00002-of-00002.safetensors")
    named = {k: f"model-0000{1 if k == 'weight' else 2}-of-00002.safetensors" for k in state}
    json.dump({"metadata": {"total_size": 392}, "weight_map": named}, open(f"{folder}/model.safetensors.index.json", "w"), indent=2)
    code, out, err = run(2, "--show", folder)
    assert code == 0 and f"loaded: {want}" in out, (code, out, err)
    state["weight"] = weight.T.copy()
    safetensors.numpy.save_file({"weight": state["weight"]}, f"{folder}/model-00001-of-00002.safetensors")
    code, out, err = run(2, "--show", folder)
    assert code != 0 and '"weight" is f32 [6,8] in model-00001-of-00002.safetensors, and here f32 [8,6]' in err, (code, out, err)
finally:
    shutil.rmtree(folder)
print("safetensors", safetensors.__version__, "reads ours, and ours reads its files")
