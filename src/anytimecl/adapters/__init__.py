"""Adapters of the classifier to the interfaces of other libraries.

    from anytimecl.adapters.sklearn import AnytimeSklearnClassifier
    from anytimecl.adapters.river import AnytimeRiverClassifier

Both come with `pip install -c constraints.txt '.[adapters]'`.
"""
