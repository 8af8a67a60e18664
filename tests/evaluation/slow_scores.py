"""Retrieval scores in plain loops."""


def scores_by_hand(
    query, query_labels, gallery=None, gallery_labels=None, ks=(1, 2, 4, 8), *, query_cameras=None,
    gallery_cameras=None,
):  # fmt: skip
    """One query after the other, straight from the definitions."""
    alone = gallery is None
    if alone:
        gallery, gallery_labels, gallery_cameras = query, query_labels, query_cameras
    sums = dict.fromkeys([*(f"recall@{k}" for k in ks), "map@r", "r_precision", "marp"], 0.0)
    scored = left_out = 0
    for q in range(len(query)):
        others = [i for i in range(len(gallery)) if not (alone and i == q)]
        if query_cameras is not None:
            others = [
                i
                for i in others
                if int(gallery_labels[i]) != int(query_labels[q])
                or int(gallery_cameras[i]) != int(query_cameras[q])
            ]
        distance = {i: float((query[q].double() - gallery[i].double()).norm()) for i in others}
        ranking = sorted(others, key=lambda i: (distance[i], i))
        hit = [int(gallery_labels[i]) == int(query_labels[q]) for i in ranking]
        r = sum(hit)
        if r == 0:
            left_out += 1
            continue
        scored += 1
        for k in ks:
            sums[f"recall@{k}"] += any(hit[:k])
        precisions = [sum(hit[: i + 1]) / (i + 1) for i in range(r) if hit[i]]
        sums["map@r"] += sum(precisions) / r
        sums["r_precision"] += len(precisions) / r
        sums["marp"] += sum(precisions) / len(precisions) if precisions else 0.0
    means = {name: total / scored for name, total in sums.items()} if scored else {}
    return {**means, "queries": scored, "queries_without_positive": left_out}
