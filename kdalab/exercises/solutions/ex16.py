def group_layers(specs: list[tuple[str, int]]) -> tuple[list[list[int]], int]:
    """Equal specs together, then cut to about the size of the smallest."""
    by_spec: dict[tuple[str, int], list[int]] = {}
    for layer, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(layer)
    sizes = [len(layers) for layers in by_spec.values()]
    least, most = min(sizes), max(sizes)
    places = most if most < 1.25 * least else least
    groups = []
    for spec in sorted(by_spec, key=lambda spec: spec[0]):
        layers = by_spec[spec]
        count = -(-len(layers) // places)
        groups += [layers[i::count] for i in range(count)]
    largest = max(len(g) for g in groups)
    return groups, sum(largest - len(g) for g in groups)
