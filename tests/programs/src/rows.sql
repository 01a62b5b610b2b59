pragma cache_size=-40000;
pragma journal_mode=wal;
create table t(i integer primary key, k int, s text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 150000)
  insert into t select i, i * 7919 % 10007, 'room ' || (i % 977) || hex(zeroblob(30)) from n;
create index x on t(s, k);
select k % 20, count(*), sum(i), max(s) from t group by 1 order by 1;
delete from t where k % 3 = 0;
vacuum;
select count(*), sum(i) from t;
pragma integrity_check;
