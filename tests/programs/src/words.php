<?php
$n = [];
$all = [];
foreach (file($argv[1]) as $line) foreach (explode(' ', trim($line)) as $w) { $n[$w] = ($n[$w] ?? 0) + 1; $all[] = strrev($w); }
ksort($n);
sort($all);
echo count($n), ' ', $all[1234], ' ', array_sum($n), ' ', md5(implode(',', $all)), "\n";
