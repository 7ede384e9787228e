"""The classifier as other libraries know one. Each adapter alone needs its library.

    from anytimecl.adapters.sklearn import AnytimeSklearnClassifier
    from anytimecl.adapters.river import AnytimeRiverClassifier

Both come with `pip install -c constraints.txt '.[adapters]'`.
"""
