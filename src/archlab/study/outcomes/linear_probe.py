"""Linear classifier that reads a class from hidden states.

Shapes: N windows, D width of the hidden states, C classes.
"""

import numpy as np
import scipy  # loads its parts on first use

PENALTY = 1e-3
"""Factor of the L2 penalty. It makes the best weights unique, and is too small to hide a class that can be read."""


def probe_accuracy(x_ND: np.ndarray, labels_N: np.ndarray, n_fitted: int) -> float:
    """Return the fraction of correct classes on all rows after the first `n_fitted`, on which the classifier is fitted.

    Each column is standardized first, so that the penalty does not depend on the scale of the hidden states.
    """
    fitted_ND, (classes, numbers) = x_ND[:n_fitted], np.unique(labels_N[:n_fitted], return_inverse=True)
    deviation = fitted_ND.std(0)
    standard_ND = (x_ND - fitted_ND.mean(0)) / np.where(deviation > 0, deviation, 1)
    weights_DC, bias_C = fit(standard_ND[:n_fitted], numbers, len(classes))
    guesses_N = (standard_ND[n_fitted:] @ weights_DC + bias_C).argmax(1)
    return float((classes[guesses_N] == labels_N[n_fitted:]).mean())


def fit(x_ND: np.ndarray, classes_N: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights [D, C] and biases [C] of multinomial logistic regression.

    They minimize the mean cross-entropy in nats plus `PENALTY` / 2 times the sum of the squared weights.
    """
    n_rows, width = x_ND.shape
    is_class_NC = classes_N[:, None] == np.arange(n_classes)

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights_DC, bias_C = np.split(flat.reshape(-1, n_classes), [width])
        logits_NC = x_ND @ weights_DC + bias_C
        log_p_NC = logits_NC - scipy.special.logsumexp(logits_NC, axis=1, keepdims=True)
        error_NC = (np.exp(log_p_NC) - is_class_NC) / n_rows
        loss = -log_p_NC[is_class_NC].mean() + PENALTY / 2 * (weights_DC**2).sum()
        return loss, np.concatenate([x_ND.T @ error_NC + PENALTY * weights_DC, error_NC.sum(0)[None]]).ravel()

    options = {"maxiter": 2000, "maxfun": 4000, "gtol": 1e-6, "ftol": 0.0}
    start = np.zeros((width + 1) * n_classes)
    found = scipy.optimize.minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    weights_DC, bias_1C = np.split(found.x.reshape(-1, n_classes), [width])
    return weights_DC, bias_1C[0]
