"""What each measure of the report means, its formula, and where the paper has it: the notes in the margin."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A measure in a few words, its formula (HTML, or nothing), and its place in the paper."""

    title: str
    text: str
    formula: str
    where: str


DEFINITIONS: dict[str, Definition] = {
    "recall": Definition(
        "Recall@1",
        "The share of test images whose nearest neighbour is of their class. Images that have none of their class to "
        "find are not asked.",
        "R@1 = 1/n Σ<sub>i</sub> [ y<sub>nn(i)</sub> = y<sub>i</sub> ]",
        "Paper, section 4.1; supplement, “Datasets”",
    ),
    "map@r": Definition(
        "MAP@R",
        "Looks at as many neighbours as there are images to find, R: the precision at each hit, added up. "
        "The paper's mARP divides by the number of hits instead of R.",
        "MAP@R = 1/R Σ<sub>i≤R</sub> h<sub>i</sub> p<sub>i</sub>, &nbsp; p<sub>i</sub> = 1/i Σ<sub>j≤i</sub> "
        "h<sub>j</sub>",
        "Paper, section 4.1; supplement, “Datasets”",
    ),
    "loss": Definition(
        "Loss",
        "What was minimised, mean over the steps of an epoch: the base loss of a batch out of one cluster, in the "
        "cluster's subspace, and the overlap of the masks. It may rise when K doubles, as smaller clusters "
        "hold harder negatives.",
        "L = L<sub>base</sub> + λ L<sub>s</sub>",
        "Paper, section 3.2, equation 6; section 4.3, “Division strategy”",
    ),
    "k": Definition(
        "K",
        "The number of clusters and of subspaces. It begins at 1 and doubles at each division, until it is "
        "K<sub>max</sub>.",
        "",
        "Paper, section 3.1",
    ),
    "generalisation": Definition(
        "Train against test",
        "One dot for each epoch, the last one large. Of two runs with the same score on train images, the "
        "higher one generalises better to classes it has not seen. On the thin diagonal both scores are equal.",
        "",
        "Paper, section 4.3, figure “Train Recall@1 vs Test Recall@1”",
    ),
    "seconds": Definition(
        "Time by phase",
        "Training steps, divisions (one pass over the training images, and k-means) and evaluation.",
        "",
        "Paper, section 4.3, “Runtime complexity”",
    ),
    "nmi": Definition(
        "NMI",
        "Normalised mutual information of two ways to group the same images: 0 if they have nothing to do with each "
        "other, 1 if they are the same. Clusters are not meant to be the classes: the paper sees about 0.4.",
        "NMI = 2 I(A; B) / (H(A) + H(B))",
        "Paper, section 4.3, “Division strategy”; supplement, “Datasets”",
    ),
    "kept": Definition(
        "Images that kept their cluster",
        "New clusters get the numbers of the old ones by the best matching. After a bisection, "
        "both children count as their parent. The paper sees 60 to 75%: neither fixed nor at random.",
        "",
        "Paper, section 3.1.1, equation 3; section 4.3, “Division strategy”; supplement, “Cluster consistency "
        "during training”",
    ),
    "sizes": Definition(
        "Sizes",
        "Bars from left to right are divisions. The two children of a cluster stand where it stood, and the "
        "first has its colour. Beside it: mean and standard deviation over the divisions into the final K.",
        "",
        "Paper, section 4.3, “Division strategy”, figure “Distribution of the sizes of clusters”",
    ),
    "split": Definition(
        "Classes split over clusters",
        "A class whose images are in several clusters was divided by what else can be seen: pose, background, sex, "
        "age. Classes are ordered by the entropy of their shares p<sub>k</sub> in the clusters.",
        "H = −Σ<sub>k</sub> p<sub>k</sub> log<sub>2</sub> p<sub>k</sub> bits",
        "Paper, section 3.1.1, figure “images sharing the same GT class label but splitted across several clusters”",
    ),
    "cluster factors": Definition(
        "What a cluster encodes",
        "NMI of “is in this cluster” with each factor that is stored with the images. Factors that are "
        "not whole numbers are cut into eight levels of equal size.",
        "NMI( [c(x) = k], factor )",
        "Not in the paper; NMI as in its supplement, “Datasets”",
    ),
    "masks": Definition(
        "Masks",
        "Subspace k weighs each dimension of the embedding by its mask. Columns are sorted by the mask in "
        "which they weigh most, so that the dimensions of a mask stand together.",
        "f<sub>k</sub>(x) = f(x) ⊙ relu(s<sub>k</sub>)",
        "Paper, section 3.1.2, equation 4; supplement, “Learned masks visualization”",
    ),
    "cosine": Definition(
        "Overlap of masks",
        "Cosine 0: two subspaces use different dimensions; 1: they are the same. Training adds the sum over all "
        "pairs to its loss.",
        "cos = s<sub>i</sub> · s<sub>j</sub> / ( |s<sub>i</sub>| |s<sub>j</sub>| )",
        "Paper, section 3.1.2, equation 5",
    ),
    "shared": Definition(
        "Dimensions in common, and mass",
        "A dimension is active in a mask if it weighs more than a tenth of the mask's largest weight. On the diagonal: "
        "how many are active in each. The mass is the sum of a mask's weights.",
        "mass = Σ<sub>j</sub> relu(s<sub>kj</sub>)",
        "Paper, supplement, “Learned masks visualization”",
    ),
    "subspace recall": Definition(
        "Each subspace alone",
        "Recall@1 if the search is done in one subspace only; the line is the search in the final space, whose "
        "mask is the sum of all.",
        "f<sub>final</sub>(x) = f(x) ⊙ Σ<sub>k</sub> relu(s<sub>k</sub>)",
        "Paper, section 3.3, equation 8; section 4.3, “Subspace learning”",
    ),
    "corrections": Definition(
        "How subspaces correct each other",
        "Corrected: the sum finds the right class first although more than half of the subspaces are wrong. Misled: "
        "the sum is wrong although more than half are right. The queries shown are the most extreme.",
        "",
        "Paper, section 4.3, “Subspace learning”, figure “Comparison of the retrieval results on CARS”",
    ),
    "subspace factors": Definition(
        "What a subspace encodes",
        "The images are clustered in the subspace, into as many clusters as the factor has levels; NMI of these "
        "clusters with the factor.",
        "",
        "Paper, section 4.1, with factors in place of classes",
    ),
    "effective dimension": Definition(
        "Effective dimension",
        "How many principal components hold 95% of the variance: of all training images in the final space, and of "
        "each cluster in its own subspace.",
        "min m: Σ<sub>i≤m</sub> λ<sub>i</sub> ≥ 0.95 Σ<sub>i</sub> λ<sub>i</sub>",
        "Paper, section 4.3, “Subspace learning”, figure “Effective manifold dimensionality”",
    ),
    "variances": Definition(
        "Variance within and between classes",
        "Distance of images to the mean m<sub>y</sub> of their class, and of the classes' means to the mean of all. "
        "They add up to the variance of all images. The paper shows both and gives no formula.",
        "intra = 1/n Σ<sub>i</sub> |x<sub>i</sub> − m<sub>y(i)</sub>|²<br>inter = 1/n Σ<sub>i</sub> |m<sub>y(i)</sub> "
        "− m|²",
        "Paper, section 4.3, “Division frequency and the number of sub-problems”",
    ),
    "ratio": Definition(
        "Nearest positive over nearest negative",
        "Expected ratio of the distances to the nearest image of the same class and of another class. Below 1 the "
        "nearest neighbour is, on the whole, right.",
        "1/n Σ<sub>i</sub> d<sup>+</sup><sub>i</sub> / d<sup>−</sup><sub>i</sub>",
        "Paper, section 4.3, “Division frequency and the number of sub-problems”",
    ),
    "expected distance": Definition(
        "ED<sub>1</sub> and ED<sub>10</sub>",
        "Expected mean distance to the nearest, and to the ten nearest. The strokes are those of as many points "
        "spread evenly over the unit sphere: the nearer to them, the better the space is filled.",
        "ED<sub>k</sub> = 1/n Σ<sub>i</sub> 1/k Σ<sub>j≤k</sub> |x<sub>i</sub> − x<sub>(j)</sub>|",
        "Paper, section 4.3, “Division frequency and the number of sub-problems”; supplement, “UMAP visualization”",
    ),
    "map": Definition(
        "UMAP",
        "A projection onto the plane that keeps neighbours together; distances between far groups and the axes "
        "mean nothing. With many classes the colours repeat.",
        "",
        "Paper, section 4.3, “Division frequency and the number of sub-problems”; supplement, “UMAP visualization”",
    ),
    "hubness": Definition(
        "Hubness",
        "Skewness of N, how often each image is among the nearest of others. 0: all equally often; far "
        "above: a few hubs are near to everything.",
        "E[(N − EN)³] / Var(N)<sup>3/2</sup>",
        "The number behind the “high-density hubs” of section 4.3 and supplement, “UMAP visualization”",
    ),
    "worst": Definition(
        "Worst queries",
        "Test images whose first image of their own class comes latest in the ranking.",
        "",
        "Not in the paper",
    ),
    "confused": Definition(
        "Confused classes",
        "Pairs of classes of which most images have their nearest neighbour in the other; the share is of the images "
        "of both classes.",
        "",
        "Not in the paper",
    ),
    "mislabelled": Definition(
        "Likely label errors",
        "Images of whose nearest neighbours at least 80% agree on one other class. The score is how much more they "
        "vote for it than for the image's own.",
        "score = (votes for theirs − votes for its own) / k",
        "Not in the paper",
    ),
    "duplicates": Definition(
        "Near-duplicates",
        "Pairs of different classes, or of different splits, whose distance is at most a fifth of the median "
        "distance to the nearest such image. Across splits they make scores too good.",
        "",
        "Not in the paper",
    ),
}
