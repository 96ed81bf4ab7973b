"Which way a metric is better: by the whole words of its name, by the task, by the settings; else a question."

import pytest

from spectrakit.config.metric_direction import check_metric_modes, metric_direction
from spectrakit.system.errors import RequestError


def words(text: str) -> list[str]:
    return text.split()


LOWER = words(
    """
    loss val_loss log_loss logLoss train_loss dice_loss f1_error accuracy_loss error_score mae valMAE mse rmse nrmse
    rmsle mape smape mean_absolute_error MeanSquaredError max_error wmape mase nll negative_log_likelihood bce
    cross_entropy ece brier brier_score brier_score_loss crps crps_score hinge huber pinball_loss kl_divergence
    wasserstein hausdorff hd95 perplexity ppl wer cer word_error_rate fpr false_positive_rate miss_rate eer fid lpips
    rmse_macro mean_rank chamfer calibration_error edit_distance err neg_mean_average_precision
    """
)
HIGHER = words(
    """
    acc accuracy val_accuracy top1 top5 top5_accuracy balanced_accuracy acc@1 auc roc_auc rocAUC AUROC pr_auc auprc ap
    ap50 mAP mAP50 map@10 average_precision precision recall recall@20 sensitivity specificity tpr true_positive_rate f1
    f1_macro F1Score macro_f1 fbeta_score mcc matthews_corrcoef kappa cohen_kappa qwk gini ks r2 r2_score R2Score
    explained_variance pearson pearsonr spearman spearman_corr kendall_tau corr rank_correlation gll log_likelihood iou
    IoU mIoU MeanIoU jaccard dice dice_score psnr ssim PSNR bleu BLEU4 rouge rougeL meteor ndcg nDCG ndcg@10 mrr
    hit_rate hit_rate@10 exact_match em score competition_score silhouette cosine_similarity c_index concordance
    win_rate neg_log_loss neg_mean_squared_error bertscore mean_per_class_accuracy negative_predictive_value
    """
)


def test_the_usual_names_are_many():
    assert len(LOWER) >= 50 and len(HIGHER) >= 60


@pytest.mark.parametrize("name", LOWER)
def test_less_of_an_error_is_better(name):
    assert metric_direction(name).mode == metric_direction(f"val_{name}").mode == "min"


@pytest.mark.parametrize("name", HIGHER)
def test_more_of_a_quality_is_better(name):
    assert metric_direction(name).mode == metric_direction(f"val_{name}").mode == "max"


@pytest.mark.parametrize(
    "name", ["val_ours", "weight", "val_mae_accuracy", "competition_metric", "lb", "x", "val_", "mapping"]
)
def test_a_name_that_does_not_tell_is_a_question_with_its_answers(name):
    with pytest.raises(RequestError) as caught:
        metric_direction(name)
    said, short = str(caught.value), name.removeprefix("val_")
    assert (
        f"The direction of the metric {name} does not follow" in said
        and "checkpoint.mode=max or checkpoint.mode=min" in said
    )
    assert f'metric_modes = {{"{short}": "max"}}' in said and "\n" not in said


def test_what_was_typed_goes_before_the_task_and_the_task_before_the_name():
    modes = {"gap": "max", "val_ours": "max"}
    assert (
        metric_direction("val_gap", metric_modes=modes).mode
        == metric_direction("val_ours", "auto", modes).mode
        == "max"
    )
    assert metric_direction("val_gap", "min", modes).mode == metric_direction("val_gap").mode == "min"


def test_the_reason_says_who_decided():
    assert metric_direction("val_mape").reason == "val_mape, lower is better: by 'mape' in its name"
    assert metric_direction("neg_rmse").reason == "neg_rmse, higher is better: by 'neg rmse' in its name"
    assert metric_direction("qwk", "max").reason == "qwk, higher is better: checkpoint.mode=max"
    assert "metric_modes" in metric_direction("ours", metric_modes={"ours": "max"}).reason


@pytest.mark.parametrize("modes", [{"qwk": "higher"}, {"qwk": 1}, {3: "max"}, ["qwk"], "max", None])
def test_wrong_metric_modes_are_one_sentence(modes):
    with pytest.raises(RequestError) as caught:
        check_metric_modes("Ours", modes)
    assert "Ours.metric_modes=" in str(caught.value) and '{"qwk": "max"}' in str(caught.value)
