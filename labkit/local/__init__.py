"""labkit.local: this machine. A Ray cluster and an object store on it, the supervisor of both, the doctor.

    from labkit.local import cluster, storage

    lab = cluster.start(nodes=2)
    store = storage.start()

labkit itself doesn't import it, so that a panel can be installed next to a Ray that exists.
"""
