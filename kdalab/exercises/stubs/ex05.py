import triton
import triton.language as tl


@triton.jit
def solve_chunk(A, B, X, N: tl.constexpr, D: tl.constexpr):
    """X_g = (I + L_g)^-1 B_g for g = program id; L is the part of A strictly below the diagonal.

    A: pointer to [G, N, N] float32, in rows. Only what is strictly below the diagonal counts; on
        it and above it stand other numbers.
    B, X: pointers to [G, N, D] float32, in rows; read B, write X. N and D are powers of two.
    """
