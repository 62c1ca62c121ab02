-- Have no statement of this session compiled. Run by people's commands: planned as if the past were one of millions, a look at one job was
-- compiled for 0.3 s and then ran for 1 ms.
SELECT set_config('jit', 'off', false)
