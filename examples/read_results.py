"""Compare methods over two seeds, and read the results in Python: per client, with intervals, and as a picture.

All that a comparison finds out is in its folder. `kinfed.open_result` opens it again, also in another program.
"""

import kinfed
from kinfed import Dirichlet, FedProx

if __name__ == "__main__":
    kinfed.compare(
        ["fedavg", FedProx(mu=0.1), "fedper"],
        data="digits",
        train_images=500,
        partition=Dirichlet(alpha=0.5),
        clients=6,
        rounds=8,
        seeds=2,
        out="runs/read_results",
        overwrite=True,
        quiet=True,
    )
    result = kinfed.open_result("runs/read_results")

    frame = result.frame()  # one row for each method, seed, round and client
    print("accuracy on the clients' own test samples, by round:")
    print(frame.pivot_table("accuracy", "round", "method").round(3).to_string())

    last = frame[frame["round"] == frame["round"].max()]
    print("\nthe client that is served worst by each method, over both seeds:")
    print(last.loc[last.groupby("method")["accuracy"].idxmin(), ["method", "seed", "client", "accuracy"]].to_string())

    print("\ngain over training alone, with 95 % intervals:")
    print(result.differences("local")[["method", "difference", "low", "high"]].round(3).to_string(index=False))
    print("\npage with pictures:", result.report())
