"""Your own table: clients are the values of a column, and a saved model takes rows of the same table.

The data are scikit-learn's table of breast tumours. The column ``hospital`` is invented: it sorts the tumours by size,
so that hospitals differ, as they do.
"""

import pandas as pd
from sklearn.datasets import load_breast_cancer

import kinfed

if __name__ == "__main__":
    cancer = load_breast_cancer(as_frame=True)
    frame = cancer.data.assign(diagnosis=cancer.target_names[cancer.target])
    frame["hospital"] = pd.qcut(frame["mean area"], 4, labels=["north", "east", "south", "west"]).astype(str)

    result = kinfed.compare(
        ["fedavg", "fedper"],
        data=frame,
        label="diagnosis",
        client="hospital",
        test_fraction=0.25,
        rounds=5,
        measure="balanced_accuracy",  # a hospital may have few tumours of one kind
        out="runs/own_data_frame",
        overwrite=True,
        quiet=True,
    )
    result.table()

    model = kinfed.load(result.path / "fedper-seed0", client="north")
    print("\nfive tumours, as the model of the hospital north sees them:", *model.predict(frame.head(5)))
